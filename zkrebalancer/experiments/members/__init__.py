"""Group members of every protocol, in one program that is told by its standard input who joins and who leaves."""
