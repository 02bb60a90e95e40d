"""The main job: FreeGrad's DIGITS experiment in every installed framework, number by number.

Read `experiment.py` for the course of it, and one file of `training/` for the training loop that a
user of that framework would write. Those loops are the only files here that import a framework, and
only when they are asked for.
"""
