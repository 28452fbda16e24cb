"""Folders and object stores behind one small interface.

Bytes under names, put-if-absent and conditional replace; what the bytes mean is not known here.
"""
