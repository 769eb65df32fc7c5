"""Settings: what can be set, read from flags, environment and .env, and the table that documents them."""
