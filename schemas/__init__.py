if __name__ == "schemas":
    raise ImportError("import toolfleet.schemas instead of schemas")
