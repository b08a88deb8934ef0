"""Several machines, each with the user's `train`: their launchers meet, and hear of each other"""
