if __name__ == "adapters":
    raise ImportError("import toolfleet.adapters instead of adapters")
