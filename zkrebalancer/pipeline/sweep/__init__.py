"""`pipeline sweep`: assignment strategies and modelled protocols over a grid of group shapes."""
