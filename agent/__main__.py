"""`python -m agent` is `sizewatch`."""

from agent.cli import main

raise SystemExit(main())
