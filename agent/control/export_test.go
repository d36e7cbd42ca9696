package control

// AnswerTo answers one connection.
var AnswerTo = answer

const MaxOpen = maxOpen
