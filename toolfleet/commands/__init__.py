"""The commands of the command line, one module each. They parse, call and print; what is decided is decided elsewhere.

Nothing heavy is imported at the top of these modules, so that `toolfleet --help` is quick.
"""
