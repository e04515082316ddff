"""What a person sees while something is measured."""
