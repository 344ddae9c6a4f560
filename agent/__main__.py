"""`python -m agent` is `sizewatch`."""

from agent.cli.main import main

raise SystemExit(main())
