"""HTTP routers, one thin file each."""
