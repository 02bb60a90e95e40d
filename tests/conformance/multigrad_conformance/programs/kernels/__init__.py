"""What each op computes, with a bound on its rounding."""
