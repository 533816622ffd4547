"""An experiment: its YAML file, checked, and the plug-ins that it names."""
