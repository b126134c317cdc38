"""The scripts behind the targets of the Makefile."""
