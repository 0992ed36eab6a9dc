"""The promise that older and newer releases understand each other."""
