"""Compilers beyond activations: functions, arguments, guards."""
