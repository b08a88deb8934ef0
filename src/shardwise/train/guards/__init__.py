"""Checks that run in every training: ranks agree, and what was asked for is what runs"""
