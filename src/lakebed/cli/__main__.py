"""`python -m lakebed.cli`: the command line, for environments whose scripts are not on the PATH."""

from lakebed.cli.entry import main

main()
