"""The server as a process: uvicorn around it, its address, threads, files and children."""
