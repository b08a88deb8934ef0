"""Plans in the words of other launchers and trainers: one file for each target"""
