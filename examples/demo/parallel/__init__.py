"""`--devices`: the experiment on several devices beside one."""
