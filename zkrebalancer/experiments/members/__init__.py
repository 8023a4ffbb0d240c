"""Group members of every protocol, in one program that takes join and leave orders on its standard input."""
