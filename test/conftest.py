"""Puts this directory on the path, so that tests in its folders share the helpers that lie here."""
