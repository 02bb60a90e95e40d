"""Programs in many dtypes, each beside the library itself."""
