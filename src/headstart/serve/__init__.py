"""OpenAI's API over HTTP: the engine behind what every client already speaks."""
