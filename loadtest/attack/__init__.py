"""A hostile client against a stack of its own: does it cost others anything, or learn anything?"""
