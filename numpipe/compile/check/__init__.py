"""What is checked of a kernel while it is compiled and behind: roles, registers, products in flight, the machine code itself.

Read `gate` first. Every error names the user's line (`blame`).
"""
