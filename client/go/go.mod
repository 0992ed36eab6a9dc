// For `make MODULES=1`. Debian's packages, which the tests use, have the same versions. The exception is genproto: Debian
// has commit b5235f65be36 of 2020-04-13, but this version of grpc requires at least the one below.
module wattwise

go 1.19

require (
	google.golang.org/genproto v0.0.0-20200526211855-cb27e3aa2013
	google.golang.org/grpc v1.33.3
	google.golang.org/protobuf v1.28.1
)

require github.com/golang/protobuf v1.5.2 // indirect
