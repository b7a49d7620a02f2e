"""A long mixed load with faults against a real server: does it stay whole?"""
