"""Every plan over a small group, interrupted after every single step, at every actor (`make interruptions`)."""
