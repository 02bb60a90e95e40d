"""The meaning of array libraries' functions, composed from ops and shared by the dialects."""
