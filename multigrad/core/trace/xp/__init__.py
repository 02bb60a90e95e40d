"""The functions of `xg.xp` over symbolic values."""
