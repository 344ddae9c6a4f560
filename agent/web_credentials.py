"""Documented name of `agent.http_server.credentials`: `python -m agent.web_credentials NAME` prints a line for a users file."""

import sys

from agent.http_server.credentials import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
