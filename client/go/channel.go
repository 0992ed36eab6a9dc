package wattwise

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// channel is a connection to one of several servers. It is replaced by one to another server if its server answers that it
// is unavailable, such as without its database, or does not answer in time: gRPC leaves only a server that it cannot
// connect to.
type channel struct {
	dial    func() (*grpc.ClientConn, error)
	several bool

	mutex      sync.Mutex
	connection *grpc.ClientConn
	closed     bool
}

func newChannel(several bool, dial func() (*grpc.ClientConn, error)) (*channel, error) {
	connection, err := dial()
	if err != nil {
		return nil, err
	}
	return &channel{dial: dial, several: several, connection: connection}, nil
}

// Invoke implements grpc.ClientConnInterface.
func (c *channel) Invoke(ctx context.Context, method string, args, reply interface{}, options ...grpc.CallOption) error {
	connection := c.current()
	err := connection.Invoke(ctx, method, args, reply, options...)
	if c.several && useless(err) {
		c.leave(connection)
	}
	return err
}

// NewStream implements grpc.ClientConnInterface. A broken stream leaves no server: the next call shows whether it is lost.
func (c *channel) NewStream(ctx context.Context, description *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.current().NewStream(ctx, description, method, options...)
}

func (c *channel) current() *grpc.ClientConn {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.connection
}

// leave connects to another server, unless another call has done so before. Calls in progress fail and are retried.
func (c *channel) leave(connection *grpc.ClientConn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.closed || c.connection != connection {
		return
	}
	next, err := c.dial()
	if err != nil {
		return
	}
	c.connection = next
	connection.Close()
}

// Close closes the connection. Calls in progress fail.
func (c *channel) Close() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.closed = true
	return c.connection.Close()
}

// useless returns whether an error shows that a server that can be reached does not help.
func useless(err error) bool {
	refused, ok := FromStatus(err).(*Error)
	if !ok {
		return false
	}
	return refused.Code == codes.DeadlineExceeded || refused.Code == codes.Unavailable && refused.Reason != ""
}
