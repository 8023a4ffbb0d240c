"""Every plan over a small group, interrupted at every step by every actor (`make interruptions`)."""
