"""Whether what a robot sends fits its description: checks of recorded or live samples, without ROS."""
