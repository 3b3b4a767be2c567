// Package instancetype says what the hosts of a pool are to a scheduler.
//
// Hosts of one class, one architecture and one capacity are a shape. Every shape has an exact name that depends on
// nothing else, such as big-8c-32Gi-amd64-1f3a9c. The shape that most hosts of a class have is offered under the name
// of the class, the others under their exact names, so that a class of equal hosts is one instance type with the
// class's name, and odd ones out are types beside it.
//
// A type never vanishes while a host that may carry its name exists: karpenter core would take its nodes for drifted.
// So both names of every shape are always published, with offerings that are unavailable when no host is free, and
// for the name that is not in use. A host without an observed architecture stands for every architecture that it may
// turn out to have.
package instancetype
