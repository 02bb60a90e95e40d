"""The dtypes of results as the library itself gives them: how it is asked, and its answers."""
