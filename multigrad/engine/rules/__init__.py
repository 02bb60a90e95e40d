"""Rules beyond the daily job: files, bridges, `xg.jit`, gradients of several losses."""
