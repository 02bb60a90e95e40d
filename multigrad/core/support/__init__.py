"""Support for all rooms: files, C libraries, locks, trees, dataclasses, HTML."""
