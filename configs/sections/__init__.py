"""The settings themselves, a module for each section."""
