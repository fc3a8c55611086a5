"""From a finished rollout to one number: answer, rubric, preference, penalties."""
