// The page at /docs: Swagger UI on the document of this server.
"use strict";

// As everywhere in the console: what the visitor chose, or else what the system has.
const theme = document.documentElement.dataset.theme;
const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.classList.toggle("dark-mode", dark);

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  filter: true,
  // A key is not kept: who closes the page has signed out.
  persistAuthorization: false,
  syntaxHighlight: { activated: false },
  tryItOutEnabled: false,
  // No badge of a validator elsewhere.
  validatorUrl: null,
});
