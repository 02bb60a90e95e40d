"""Arguments of a call: their layout, facts about them, how they reach a framework's function."""
