"""`python -m edge.cli`: the same as `msedge`."""

from edge.cli import main

main()
