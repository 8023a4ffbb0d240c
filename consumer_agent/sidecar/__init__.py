"""`consumer-agent`: the command line, and an application in a child process. Built on the public API."""
