if __name__ == "examples":
    raise ImportError("import toolfleet.examples instead of examples")
