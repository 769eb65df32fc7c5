"""What `t5gemma2 bench` prints and writes: the report and its text, table, Markdown and plots."""
