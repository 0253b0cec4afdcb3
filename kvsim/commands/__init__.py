"""Commands of the command line, a module each; `kvsim.cli` finds them by name."""
