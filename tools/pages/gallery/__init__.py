"""The gallery: what stands on its page, and the JavaScript that moves its curves."""
