"""Each op, VJP and rule in each dtype at each of its edges."""
