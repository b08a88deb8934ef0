"""Several machines, on each of which the user starts `train`: their launchers meet, and hear of each other"""
